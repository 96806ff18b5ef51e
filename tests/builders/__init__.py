"""What tests of several folders build: models, texts, data files, plans and specs, all small."""
