"""From a points table to one configuration: rules, thresholds, and how sure it is."""
