"""Whatever is read that others wrote gives a value or its own error, with any bytes: no other exception, no hang."""
