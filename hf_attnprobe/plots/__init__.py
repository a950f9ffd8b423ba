"""What a report shows, as plain data: charts, maps of heads, texts. Pure: rows in."""
