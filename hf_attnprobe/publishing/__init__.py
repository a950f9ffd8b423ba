"""The verb ``card``: a checkpoint's card from its audits, and both on the Hub.

run.py      the public function ``write_card``
options.py  what it can be asked
audits.py   audits of this model, and of no other, as a card tells them
rows.py     an audit's folder as files of a data set, without folders of this machine
hub.py      commits of whole repositories, with errors of one line
report.py   what comes out
"""
