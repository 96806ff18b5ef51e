"""What a run says about its privacy: the record, and the card for people."""
