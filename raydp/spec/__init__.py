"""The specification of a sweep: one YAML file, checked before anything runs."""
