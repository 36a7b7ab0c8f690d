from django.db.models import Count
from django.shortcuts import render

from .models import Order, Refund


def home(request):
    """What the shop looks like at this moment: how many orders and refunds are in which state."""
    tables = [("orders", counts(Order)), ("refunds", counts(Refund))]
    return render(request, "home.html", {"tables": tables})


def counts(model):
    """Pairs of state and number of rows, in the order of the states; none is left out."""
    found = dict(model.objects.order_by().values_list("state").annotate(Count("pk")))
    return [(state.value, found.get(state.value, 0)) for state in model.State]
