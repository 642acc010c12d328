"""Tests that share one Airflow, as a package: pytest ends its fixtures right after its last test."""
