"""An audit before its first test.

prepared.py       everything loaded, encoded and chosen
fingerprints.py   what tells its model from others
reference.py      the head outputs that replace ablated ones
"""
