"""Apache Airflow provider for a web data collection service."""

__version__ = "1.0.0rc1"
