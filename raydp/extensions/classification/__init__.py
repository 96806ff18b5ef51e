"""Classification of tables, images and texts (docs/classification.md).

It builds on: adapters.
"""
