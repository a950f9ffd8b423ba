"""An audit before its first test.

job.py       what is known then
prepared.py  everything loaded, encoded and chosen
"""
