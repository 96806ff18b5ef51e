"""What the commands print for people: tables and sentences."""
