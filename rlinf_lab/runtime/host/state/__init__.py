"""What one host knows, as data; the messages between hosts. What parts may ask of each other."""
