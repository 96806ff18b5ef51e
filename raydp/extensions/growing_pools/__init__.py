"""The rule `pareto-knee`, and rules followed quickly through pools that grow with the threshold.

See docs/analysis.md.
"""
