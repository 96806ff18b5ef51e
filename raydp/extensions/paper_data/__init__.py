"""The data of Hu et al. 2025 as tasks, Enron's e-mails and TOFU's answers (docs/data.md)."""
