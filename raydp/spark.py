"""The name of Spark's RayDP, which Ray imports for data frames of Spark; raydp-tune has none."""

import raydp

raise ImportError(raydp.NO_SPARK)
