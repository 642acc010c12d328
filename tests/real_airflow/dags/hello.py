"""A DAG that needs nothing but Airflow."""

import logging

from airflow.sdk import Param, dag, task


@dag(schedule=None, params={"name": Param("nobody", type="string")})
def hello():
    @task
    def greet(params):
        logging.getLogger(__name__).info("greeting %s", params["name"])
        return f"hello {params['name']}"

    @task
    def shout(text):
        if "nobody" in text:
            raise ValueError("there is nobody to shout at")
        return text.upper()

    shout(greet())


hello()
