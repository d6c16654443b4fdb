"""What commands print: tables, documents and the live display."""
