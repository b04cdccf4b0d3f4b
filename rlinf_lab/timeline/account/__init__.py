"""Where the time went: busy, bubbles by cause, tables, SQL."""
