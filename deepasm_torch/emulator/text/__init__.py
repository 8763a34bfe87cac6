"""PTX text to statements."""
