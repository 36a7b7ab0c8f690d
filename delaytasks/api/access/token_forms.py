"""Forms of tokens, grants and service accounts in the admin.

Nobody makes a token stronger that has more rights than they have. A token gets stronger if it expires later, if one of
its limits is raised, or if its account becomes active again.

The page may be older than the row: what its user has not changed stays as it is in the row. Otherwise a changed note
would undo what a colleague has done in an emergency.
"""

from collections.abc import Iterable
from typing import Any

from django import forms
from django.db import router
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from ... import conf
from ...admin.forms import ChangesForm
from ..models import Grant, Token
from . import grants

LIMITS = ("rate_per_minute", "max_request_bytes", "max_live_jobs")


def _is_stronger(term: str, before: Any, after: Any) -> bool:
    if term == "expiry_date":
        return before is not None and (after is None or after > before)
    if term in LIMITS:
        default = getattr(conf.get(), f"api_{term}")
        return bool((after or default) > (before or default))
    return False


class RightsForm(ChangesForm):
    """Base of the forms that check rights. `user` is the user who edits; set by RightsFormMixin."""

    user: Any = None

    def _problem(self, tokens: QuerySet[Token]) -> str:
        """Return why the user may not grant the rights of these tokens, or ""."""
        rows: Iterable[Grant] = Grant.objects.using(tokens.db).filter(token__in=tokens)
        return next(filter(None, (grants.problem(self.user, row.topic, row.rights) for row in rows)), "")


class TokenForm(RightsForm):
    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        changed = [name for name in self.changed_data if name in cleaned]
        stronger = [name for name in changed if _is_stronger(name, self.initial.get(name), cleaned[name])]
        if self.instance.pk is not None and stronger and (problem := self._problem(self._token())):
            text = _("This token has rights that you may not grant.")
            for name in stronger:
                self.add_error(name, f"{text} {problem}")
        return cleaned

    def _token(self) -> QuerySet[Token]:
        tokens: QuerySet[Token] = Token.objects.using(router.db_for_write(Token))
        return tokens.filter(pk=self.instance.pk)


class AccountForm(RightsForm):
    def clean_active(self) -> bool:
        active: bool = self.cleaned_data["active"]
        changed = self.instance.pk is not None and "active" in self.changed_data
        reactivated = changed and active and not self.initial["active"]
        if reactivated and (problem := self._problem(Token.objects.unexpired().filter(account=self.instance))):
            text = _("This account has tokens with rights that you may not grant.")
            raise forms.ValidationError(f"{text} {problem}")
        return active


class RightsFormMixin:
    """A ModelAdmin that tells its form who edits."""

    def get_form(self, request: Any, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, change=change, **kwargs)  # type: ignore[misc]
        form.user = request.user
        return form
