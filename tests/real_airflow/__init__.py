"""Tests on one Airflow. Only of a package does pytest end what the tests share with the last of them."""
