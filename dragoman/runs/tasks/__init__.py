"""One entry per task: its data format, models, metrics, starter configuration and checks."""
