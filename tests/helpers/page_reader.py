"""Parser for the visible text of HTML pages, based on the standard library."""

import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """Visible text, elements with attributes, ids and embedded data of a page."""

    def __init__(self, page):
        super().__init__()
        self.text, self.elements, self.ids, self.hidden_tags, self.data = [], [], [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag in ("script", "style"):
            self.hidden_tags.append((tag, attributes.get("type")))

    def handle_endtag(self, tag):
        if self.hidden_tags and tag == self.hidden_tags[-1][0]:
            self.hidden_tags.pop()

    def handle_data(self, data):
        if not self.hidden_tags:
            self.text.append(data)
        elif self.hidden_tags[-1] == ("script", "application/json"):
            self.data += data

    @property
    def words(self):
        """The visible text on one line."""
        return re.sub(r"\s+", " ", "".join(self.text))

    @property
    def apart(self):
        """The visible text with a space between any two elements."""
        return re.sub(r"\s+", " ", " ".join(self.text))
