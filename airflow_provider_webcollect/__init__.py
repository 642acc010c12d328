"""Apache Airflow provider for a web data collection service."""

__version__ = "0.1.0"
