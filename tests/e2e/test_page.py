"""The page on a real control plane, through the real scheduler."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.chromium import launched, refuse_other_hosts
from tests.controlplane import PATIENCE_SECONDS, Api
from tests.controlplane.objects import L40S, shared_pod, sharing_node
from tests.e2e.conftest import SCHEDULER, RunningService

pytestmark = pytest.mark.e2e


def test_a_pods_reason_is_on_the_page_and_the_pod_moves_when_room_comes_free(api: Api, service: RunningService) -> None:
    api.create_nodes([sharing_node("only", L40S, count=1)])
    with launched() as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        expect.set_options(timeout=PATIENCE_SECONDS * 1000)
        other_hosts = refuse_other_hosts(page, service.url)
        page.goto(f"{service.url}/#pods")
        # Names of its own: the page remembers pods of other tests.
        first = page.locator(".pod", has_text="default/page-first")
        late = page.locator(".pod", has_text="default/page-late")
        api.create_pod(shared_pod("page-first", "30Gi", scheduler=SCHEDULER))
        expect(first).to_contain_text("only GPU 0")
        api.create_pod(shared_pod("page-late", "30Gi", scheduler=SCHEDULER))
        expect(late).to_contain_text("waiting")
        expect(late).to_contain_text("GPU memory promised to other pods, 30.0 GiB needed")
        late.click()
        expect(page.locator(".advice")).to_contain_text("It fits when default/page-first ends.")
        api.delete_pod("page-first")
        expect(late).to_contain_text("only GPU 0")
        assert other_hosts == []
