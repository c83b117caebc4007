"""Five experts in bfloat16 for the time on a stretch of road, behind a router. FAULT from step 80 on: the biases of two experts in the router are set far down
and the balance and the noise are switched off: they get no row any more, and no gradient.
Without Rangewatch: loss 2.07 to 0.059 at step 79 (14 to 29 rows an expert), 0.65 at step 80, 1.07 at step 81, 0.36 to 0.63 to the end; the rows of
experts 1 and 4 are 0 from step 80 on.
Cause: no_gradient / dead_units / data (of the routing). Step: 80. Place: experts or router. Right: expert / router / balance. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["no_gradient", "dead_units", "data"], "step": [79, 140], "place": ".*(expert|gate|router).*", "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "expert|router|gate|balanc|no gradient|no row|unused|token"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1513); torch.set_num_threads(1)
EXPERTS = 5
slope = torch.randn(EXPERTS, 8)


class TravelTime(nn.Module):
    """The time on a stretch of road, by one of five experts in bfloat16."""
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8 + EXPERTS, EXPERTS)
        with torch.no_grad():
            self.router.weight[:, 8:] += 3 * torch.eye(EXPERTS)  # the kind of road comes first
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 1)) for _ in range(EXPERTS)).to(torch.bfloat16)

    def forward(self, x, road, spread):
        logits = self.router(torch.cat((x, road), 1))
        p = logits.softmax(1)
        chosen = (logits + spread * torch.randn_like(logits)).argmax(1)
        out = torch.zeros(len(x), device=x.device)
        self.rows = [int((chosen == e).sum()) for e in range(EXPERTS)]
        for e, expert in enumerate(self.experts):
            at = (chosen == e).nonzero()[:, 0]
            if len(at):
                out = out.index_add(0, at, p[at, e] * expert(x[at].to(torch.bfloat16))[:, 0].float())
        share = torch.tensor(self.rows) / len(x)
        return out, EXPERTS * (share * p.mean(0)).sum()


def stretches(n):
    kind = torch.randint(0, EXPERTS, (n,))
    x = torch.randn(n, 8)
    return x, F.one_hot(kind, EXPERTS).float(), (x * slope[kind]).sum(1) / 2


model = TravelTime()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, road, y = stretches(96)
    if step == 80:
        with torch.no_grad():
            model.router.bias[torch.tensor([1, 4])] -= 30.0  # a load balancer by hand takes them for overloaded, and is off after that
    out, balance = model(x, road, spread=0.5 if step < 80 else 0.0)
    loss = F.mse_loss(out, y) + (0.05 * balance if step < 80 else 0.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (79, 81, 219):
        print(step, loss.item(), "rows", model.rows, flush=True)
    handle.log(loss=loss.item())
handle.detach()
