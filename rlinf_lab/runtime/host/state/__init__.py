"""What one host knows, as data; the messages between hosts; what parts may ask of each other."""
