"""The faithfulness tests, one file each, which registers its test.

File = function = name in commands, rows and reports.
"""
