"""What a command found, in forms that outlive the terminal: JSON with a schema, and a page to read."""
