"""What a reader of a page sees, by the standard library's parser of HTML."""

import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """All text that a browser shows, and the ids."""

    def __init__(self, page):
        super().__init__()
        self.text, self.tags, self.ids, self.open = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        if tag in ("script", "style"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and tag == self.open[-1]:
            self.open.pop()

    def handle_data(self, data):
        if not self.open:
            self.text.append(data)

    @property
    def words(self):
        return re.sub(r"\s+", " ", "".join(self.text))
