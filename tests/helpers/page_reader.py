"""What a reader of a page sees, by the standard library's parser of HTML."""

import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """All text that a browser shows, the elements with their attributes, their ids, and the data of a page."""

    def __init__(self, page):
        super().__init__()
        self.text, self.elements, self.ids, self.open, self.data = [], [], [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        own = dict(attrs)
        self.elements.append((tag, own))
        self.ids += [own["id"]] if "id" in own else []
        if tag in ("script", "style"):
            self.open.append((tag, own.get("type")))

    def handle_endtag(self, tag):
        if self.open and tag == self.open[-1][0]:
            self.open.pop()

    def handle_data(self, data):
        if not self.open:
            self.text.append(data)
        elif self.open[-1] == ("script", "application/json"):
            self.data += data

    @property
    def words(self):
        return re.sub(r"\s+", " ", "".join(self.text))

    @property
    def apart(self):
        """The same with a blank between any two elements."""
        return re.sub(r"\s+", " ", " ".join(self.text))
