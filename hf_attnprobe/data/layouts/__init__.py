"""Data sets as their authors give them out, file by file: a module per layout.

Each has a function of folder and name, from the files of a folder to rows by split, or None
where the folder holds none of its files. Nothing is downloaded, and nothing is kept.
"""
