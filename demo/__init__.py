"""The demo: a real Airflow and the stand-in service on this machine, with separate folders and free ports."""
