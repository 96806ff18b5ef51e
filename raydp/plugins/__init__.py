"""Plug-ins by name or by file: where they live, and which parameters they take."""
