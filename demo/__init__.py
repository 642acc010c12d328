"""The demo: a real Airflow and the stand-in service on this machine, in folders and on ports of their own."""
