"""Reports as one self-contained HTML file. Pure: data in, a string out."""
