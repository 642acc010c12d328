"""The page *Browse → Web collection* in Airflow's web interface, from Airflow 3.1 on."""
