"""What goes over the network besides the call itself: credentials, redirects, TLS, proxies, connections."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_webcollect.sandbox import Sandbox, demo
from airflow_provider_webcollect.service import endpoints, errors
from airflow_provider_webcollect.service.client import AsyncClient, Client
from airflow_provider_webcollect.service.endpoints import Call, Credential
from airflow_provider_webcollect.service.settings import Credentials, Retries
from tests.operations import Scene, one_call_of_each
from tests.service.conftest import Clock, Connect
from tests.service.servers import answer, make_authority, serving

pytestmark = [
    pytest.mark.usefixtures("plain_environment"),
    pytest.mark.webcollect_sandbox(enforce_limits=False),
]

CALL = endpoints.get_running_counts()
DEPRECATE = endpoints.deprecate_data_app("a")
STATS = CALL.endpoint.path
COUNTS = answer({"extractingCount": 1})


class TestCredentials:
    def test_a_key_goes_to_five_endpoints(self, on_clock: Connect, sandbox: Sandbox, scene: Scene) -> None:
        credentials = Credentials(
            access_token=sandbox.access_token,
            api_key=sandbox.api_key,
            datahub_api_key=sandbox.datahub_api_key,
        )
        client = on_clock(credentials=credentials)
        calls = one_call_of_each(scene)
        for call in calls:
            client.send(call)
        kinds = {
            call.endpoint.number: request["credential"]
            for call, request in zip(calls, sandbox.control.requests(), strict=True)
        }
        assert {number for number, kind in kinds.items() if kind == "api_key"} == {3, 7, 15, 18, 19}
        assert {number for number, kind in kinds.items() if kind == "none"} == {1}
        assert set(kinds.values()) == {"api_key", "bearer", "none"}

    @pytest.mark.beyond_the_contract
    def test_a_key_serves_everywhere_if_it_is_taken_there(self, on_clock: Connect, sandbox: Sandbox) -> None:
        sandbox.control.configure(api_key_everywhere=True)
        client = on_clock(credentials=Credentials(api_key=demo.API_KEY, api_key_everywhere=True))
        for call in (CALL, endpoints.mark_exported(demo.FINISHED_TASK_ID)):
            client.send(call)
        assert [request["credential"] for request in sandbox.control.requests()] == ["api_key"] * 2

    def test_a_key_alone_does_not_replace_a_token(
        self, on_clock: Connect, sandbox: Sandbox, scene: Scene
    ) -> None:
        client = on_clock(credentials=Credentials(api_key=sandbox.api_key))
        for call in one_call_of_each(scene):
            if call.endpoint.credential is Credential.TOKEN:
                with pytest.raises(errors.ConnectionIncomplete, match="only an API key") as refusal:
                    client.send(call)
                assert "`api_key_everywhere`" in str(refusal.value)
                assert refusal.value.endpoint == call.endpoint.name
                # with a key, rows can be read by batch instead
                assert ("`lotno`" in str(refusal.value)) is (call.endpoint is endpoints.read_data.endpoint)
        assert sandbox.control.requests() == []

    @pytest.mark.parametrize(
        ("options", "call", "said"),
        [
            (
                {"credentials": Credentials()},
                endpoints.copy_task("t"),
                "`refresh_token`, `access_token` or `api_key`",
            ),
            ({"credentials": Credentials()}, DEPRECATE, "`datahub_api_key`"),
            ({"datahub_url": None}, DEPRECATE, "`datahub_url`"),
        ],
    )
    def test_what_a_connection_lacks_is_said_and_nothing_is_sent(
        self, on_clock: Connect, sandbox: Sandbox, options: dict[str, Any], call: Call[Any], said: str
    ) -> None:
        with pytest.raises(errors.ConnectionIncomplete, match=said) as refusal:
            on_clock(**options).send(call)
        assert refusal.value.endpoint == call.endpoint.name
        assert sandbox.control.requests() == []

    def test_a_wrong_key_is_not_replaced_by_the_token(self, on_clock: Connect, sandbox: Sandbox) -> None:
        client = on_clock(credentials=Credentials(access_token=sandbox.access_token, api_key="wrong"))
        with pytest.raises(errors.TokenRejected, match="Put a valid `refresh_token`") as refusal:
            client.send(endpoints.copy_task(demo.TASK_ID))
        assert refusal.value.status == 401
        assert len(sandbox.control.requests()) == 1

    def test_a_wrong_key_of_the_data_app_service_is_named(self, on_clock: Connect, sandbox: Sandbox) -> None:
        client = on_clock(credentials=Credentials(datahub_api_key="wrong"))
        with pytest.raises(
            errors.TokenRejected, match="valid key into the connection extra `datahub_api_key`"
        ):
            client.send(DEPRECATE)

    def test_a_host_that_is_no_name_is_no_unknown_outcome(self, on_clock: Connect) -> None:
        client = on_clock(base_url="https://*.example.com", retries=Retries(attempts=1))
        with pytest.raises(errors.ServiceUnreachable, match="Check the connection's host"):
            client.send(endpoints.copy_task("t"))

    def test_a_call_survives_two_rejected_tokens_in_a_row(self, on_clock: Connect, sandbox: Sandbox) -> None:
        sandbox.control.fail(STATS, times=2, status=401)
        client = on_clock(
            credentials=Credentials(access_token=sandbox.access_token, refresh_token=sandbox.refresh_token)
        )
        assert client.send(CALL).finished_count == 1

    def test_the_environment_slips_in_no_other_credential(
        self, on_clock: Connect, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        netrc = tmp_path / ".netrc"
        netrc.write_text("machine 127.0.0.1 login me password other\ndefault login me password other\n")
        netrc.chmod(0o600)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("NETRC", str(netrc))
        with serving(lambda _: COUNTS) as server:
            client = on_clock(base_url=server.url, credentials=Credentials(access_token="mine"))
            client.send(CALL)
            with pytest.raises(errors.WebCollectError):
                on_clock(base_url=server.url, retries=Retries(attempts=1)).send(endpoints.refresh_token("r"))
        stats, refresh = server.received
        assert stats.count(b"uthorization:") == 1
        assert b"authorization: Bearer mine" in stats.replace(b"Auth", b"auth")
        assert b"uthorization:" not in refresh

    def test_no_cookie_is_kept(self, on_clock: Connect) -> None:
        said = answer({"extractingCount": 1}, Set_Cookie="session=1; Path=/")
        with serving(lambda _: said) as server:
            client = on_clock(base_url=server.url)
            for _ in range(2):
                client.send(CALL)
        assert len(server.received) == 2
        assert b"cookie" not in b"".join(server.received).lower()


def redirect(to: str, status: int = 307) -> dict[str, Any]:
    return {"kind": "raw", "status": status, "headers": {"Location": to}}


class TestRedirects:
    def test_another_host_gets_nothing(self, client: Client, sandbox: Sandbox) -> None:
        with Sandbox() as other:
            for status in (301, 302, 303, 307, 308):
                for to in (other.url + STATS, other.url.replace("http:", "") + STATS):
                    sandbox.control.fail("*", **redirect(to, status), times=2)
                    with pytest.raises(errors.RedirectRefused, match=other.url) as refusal:
                        client.send(CALL)
                    assert refusal.value.status == status
                    assert "Set the connection's host" in str(refusal.value)
                    with pytest.raises(errors.RedirectRefused):
                        client.send(endpoints.copy_task(demo.TASK_ID))
            assert other.control.requests() == []

    @pytest.mark.parametrize(
        "to",
        [
            *("https://127.0.0.1:{port}" + STATS, "http://localhost:{port}" + STATS),
            *("http://me:word@127.0.0.1:{port}" + STATS, "http://[", "", "mailto:me@a.example"),
            *(STATS, "/cloudextraction/elsewhere"),
        ],
    )
    def test_none_is_followed_wherever_it_leads(self, client: Client, sandbox: Sandbox, to: str) -> None:
        port = sandbox.url.rpartition(":")[2]
        sandbox.control.fail(STATS, **redirect(to.format(port=port)))
        with pytest.raises(errors.RedirectRefused) as refusal:
            client.send(CALL)
        assert "word" not in str(refusal.value)
        assert len(sandbox.control.requests()) == 1


class TestTls:
    @pytest.mark.parametrize("how", ["setting", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
    def test_a_certificate_of_the_given_authority_is_trusted(
        self, on_clock: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
    ) -> None:
        authority, context = make_authority(tmp_path)
        if how != "setting":
            monkeypatch.setenv(how, str(authority))
        with serving(lambda _: COUNTS, context) as server:
            client = on_clock(base_url=server.url, ca_file=str(authority) if how == "setting" else None)
            assert client.send(CALL).extracting_count == 1

    @pytest.mark.parametrize(
        ("name", "authorities"),
        [("127.0.0.2", "authority.pem"), ("127.0.0.1", "empty"), ("127.0.0.1", "nothing.pem")],
        ids=["certificate for another name", "folder of none", "file of none"],
    )
    def test_a_certificate_of_another_authority_is_refused(
        self, on_clock: Connect, tmp_path: Path, name: str, authorities: str
    ) -> None:
        _, context = make_authority(tmp_path, name=name)
        (tmp_path / "empty").mkdir()
        (tmp_path / "nothing.pem").write_text("nothing")
        with serving(lambda _: COUNTS, context) as server, pytest.raises(errors.TlsError):
            on_clock(base_url=server.url, ca_file=str(tmp_path / authorities)).send(CALL)

    def test_a_missing_file_of_authorities_is_named(
        self, on_clock: Connect, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(errors.InvalidArgument, match="`ca_file` is '/no/such/file'"):
            on_clock(ca_file="/no/such/file").send(CALL)
        monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file")
        with pytest.raises(errors.InvalidArgument, match="`SSL_CERT_FILE` is '/no/such/file'"):
            on_clock().send(CALL)
        assert sandbox.control.requests() == []

    def test_a_request_before_a_broken_tls_is_uncertain(self, on_clock: Connect, tmp_path: Path) -> None:
        authority, context = make_authority(tmp_path)
        cut = b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"
        answers = [b"", cut, COUNTS, b"", cut]
        with serving(lambda _: answers.pop(0), context) as server:
            client = on_clock(base_url=server.url, ca_file=str(authority))
            assert client.send(CALL).extracting_count == 1
            assert len(server.received) == 3
            for _ in range(2):
                with pytest.raises(errors.OutcomeUnknown):
                    client.send(endpoints.copy_task("t"))


class TestProxies:
    def test_hosts_that_the_environment_excepts_are_asked_directly(
        self, on_clock: Connect, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        for excepted in ("127.0.0.1", "a.example, 127.0.0.0/8", "[::1], [::2, /, 127.0.0.1"):
            monkeypatch.setenv("no_proxy", excepted)
            assert on_clock().send(CALL).finished_count == 1

    def test_the_environments_proxy_is_used(self, on_clock: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
        login = base64.b64encode(b"me:p@ss")
        with serving(lambda _: COUNTS) as proxy:
            for scheme in ("", "http://"):
                monkeypatch.setenv("all_proxy", f"{scheme}me:p%40ss@127.0.0.1:{proxy.port}")
                on_clock(base_url="http://service.example").send(CALL)
        request = b"GET http://service.example/cloudextraction/task/stats HTTP/1.1"
        assert [raw.startswith(request) for raw in proxy.received] == [True] * 2
        assert all(b"roxy-authorization: basic " + login.lower() in raw.lower() for raw in proxy.received)

    def test_a_proxy_may_speak_tls_under_the_given_authority(
        self, on_clock: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        authority, context = make_authority(tmp_path)
        with serving(lambda _: COUNTS, context) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            client = on_clock(base_url="http://service.example", ca_file=str(authority))
            assert client.send(CALL).extracting_count == 1
            with pytest.raises(errors.TlsError):
                on_clock(base_url="http://service.example").send(CALL)

    def test_a_trusted_service_behind_a_tunnel_is_asked(
        self, on_clock: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        authority, tunnel = make_authority(tmp_path)
        with serving(lambda _: COUNTS, tunnel=tunnel) as proxy:
            monkeypatch.setenv("https_proxy", proxy.url)
            client = on_clock(base_url="https://127.0.0.1", ca_file=str(authority))
            assert client.send(CALL).extracting_count == 1
        assert proxy.received[0].startswith(b"CONNECT 127.0.0.1:443 ")

    @pytest.mark.parametrize(
        "name",
        [
            *("http://[::1", "http://", "http://a:b:c", "ftp://a.example"),
            *("http://a..example", "http://:0", "///"),
        ],
    )
    def test_a_malformed_proxy_is_refused_by_its_variable(
        self, on_clock: Connect, clock: Clock, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv("https_proxy", name.replace("//", "//me:SECRET@"))
        with pytest.raises(errors.ProxyUnusable, match=r"HTTPS_PROXY \(or ALL_PROXY\)") as refusal:
            on_clock(base_url="https://service.example").send(endpoints.copy_task("t"))
        assert "SECRET" not in str(refusal.value)
        assert clock.slept == []

    def test_a_request_cut_by_a_proxy_is_uncertain(
        self, on_clock: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serving(lambda _: b"") as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            client = on_clock(base_url="http://service.example")
            with pytest.raises(errors.OutcomeUnknown):
                client.send(endpoints.copy_task("t"))
        assert len(proxy.received) == 1


class TestSharing:
    def test_threads_share_one_client(self, connect: Connect, sandbox: Sandbox) -> None:
        client = connect(
            credentials=Credentials(
                access_token=sandbox.access_token,
                refresh_token=sandbox.refresh_token,
                api_key=sandbox.api_key,
            )
        )
        sandbox.control.expire_tokens()
        sandbox.control.fail("/data/all", times=None, probability=0.05, status=503)
        rows = sandbox.control.true_rows(demo.FINISHED_TASK_ID)

        def read(number: int) -> Any:
            size = number % 7 + 1
            first = client.send(endpoints.read_data(demo.FINISHED_TASK_ID, 0, size))
            second = client.send(endpoints.read_data(demo.FINISHED_TASK_ID, first.offset, size))
            return first.records() + second.records() == rows[: 2 * size]

        with ThreadPoolExecutor(16) as threads:
            assert all(threads.map(read, range(200)))
        tokens = [request for request in sandbox.control.requests() if request["path"] == "/token"]
        assert len(tokens) == 1

    def test_connections_are_kept(self, client: Client, sandbox: Sandbox) -> None:
        for _ in range(10):
            client.send(CALL)
        assert len({request["client_port"] for request in sandbox.control.requests()}) == 1

    def test_a_closed_client_opens_again(self, client: Client, sandbox: Sandbox) -> None:
        for _ in range(2):
            client.send(CALL)
            client.close()
        assert len(sandbox.control.requests()) == 2

    async def test_a_closed_async_client_sends_nothing(self, client: Client, sandbox: Sandbox) -> None:
        async with AsyncClient(client.context) as closed:
            assert (await closed.send(CALL)).finished_count == 1
        with pytest.raises(errors.Stopped):
            await closed.send(CALL)
        assert len(sandbox.control.requests()) == 1
