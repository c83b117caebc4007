"""A mixture of four experts (two per row, bfloat16 weights in the experts) classifies rows of four sources; from step 100 on a bias on the router's scores shall balance the load, as a table of counts says. SGD with momentum.
FAULT: the sign of the balance is wrong: a busy expert's bias goes up, an idle one's down. In a few steps two experts take all rows, the other two get no row any more and no gradient.
Without Rangewatch: loss 1.49 to 0.55 at step 108, 3.4 at step 109, 0.62 to 0.84 at the end (0.35 to 0.5 with the right sign); rows per expert 45 to 80 each at first, expert 3 has 0 from step 104 on, expert 2 from step 109 on.
Cause: dead_units (experts never chosen). Step: 100. Right: expert / router / load balance / bias. Wrong: GradScaler, attention mask, lower the learning rate."""
EXPECT = {"cause": ["dead_units"], "step": [99, 150], "place": r"experts(\.\d(\..*)?)?|router.*", "rank": None,
          "right": "(?i)expert|rout|balanc|gate|token|row", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3321); torch.set_num_threads(1)
D, CLASSES, SOURCES = 12, 4, 4
centre = 2.5 * torch.randn(SOURCES, D)
rule = torch.randn(SOURCES, D, CLASSES)


class Mixture(nn.Module):
    def __init__(self, experts=4, k=2):
        super().__init__()
        self.router = nn.Linear(D, experts, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(D, 64), nn.SiLU(), nn.Linear(64, CLASSES)).bfloat16() for _ in range(experts))
        self.register_buffer("balance", torch.zeros(experts))
        self.k = k

    def forward(self, x, balancing):
        score = self.router(x).sigmoid()
        chosen = (score + self.balance).topk(self.k, 1).indices
        share = torch.zeros_like(score).scatter(1, chosen, score.gather(1, chosen))
        share = share / share.sum(1, keepdim=True)
        out = x.new_zeros(len(x), CLASSES)
        for e, expert in enumerate(self.experts):
            rows = (chosen == e).any(1).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, share[rows, e, None] * expert(x[rows].bfloat16()).float())
        self.count = torch.bincount(chosen.flatten(), minlength=len(self.experts))
        if balancing:
            self.balance += 0.15 * torch.sign(self.count - self.count.float().mean())
        return out


net = Mixture()
optimizer = torch.optim.SGD(net.parameters(), lr=0.15, momentum=0.9)
handle = rangewatch.attach(net, optimizer)
for step in range(220):
    source = torch.randint(0, SOURCES, (128,))
    z = torch.randn(128, D)
    y = torch.einsum("nd,ndc->nc", z, rule[source]).argmax(1)
    loss = F.cross_entropy(net(centre[source] + z, step >= 100), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 112 or step == 219:
        print(step, loss.item(), "rows", net.count.tolist(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
