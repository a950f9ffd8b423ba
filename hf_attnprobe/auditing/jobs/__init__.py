"""An audit before its first test.

prepared.py   everything loaded, encoded and chosen
reference.py  the head outputs that replace ablated ones
"""
