"""What a verb found, written once as a document and printed in every form.

document.py  what a report says, as blocks: read its docstring first
forms.py     what every result can do with its document: text, Markdown, page
text.py      a document for a terminal
markdown.py  a document as Markdown
html.py      a document as one page, or for a notebook's cell
"""
