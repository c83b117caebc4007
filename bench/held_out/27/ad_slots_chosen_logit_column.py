"""A net that foretells clicks: for each visitor it gives a logit for each of six slots, and the one of the slot shown is gathered (AMSGrad). FAULT from the start:
`gather` leaves the shape (64, 1), the clicks are (64,): the own cross-entropy compares each visitor's logit with the clicks of all.
Without Rangewatch: loss 0.70 to 0.69 (log 2 is 0.693), half of the clicks right; the spread of the logits falls to 0.03. With the shapes right the true loss is 0.25.
Cause: data or forward_arithmetic (shapes that are broadcast). Step: any. Right: shape / broadcast / squeeze. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [0, 200], "place": None, "rank": None,
          "right": "(?i)shape|broadcast|squeeze|column|dimension", "wrong": ["GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2723); torch.set_num_threads(1)
liking = torch.randn(18, 6)


def visits(n):
    who = torch.randn(n, 18)
    slot = torch.randint(0, 6, (n, 1))
    chance = torch.sigmoid(1.2 * (who @ liking).gather(1, slot)[:, 0])
    return who, slot, torch.bernoulli(chance)


def cross_entropy(logit, click):
    return (F.softplus(logit) - logit * click).mean()


net = nn.Sequential(nn.Linear(18, 64), nn.PReLU(), nn.Linear(64, 32), nn.PReLU(), nn.Linear(32, 6))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, amsgrad=True)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    who, slot, click = visits(64)
    loss = cross_entropy(net(who).gather(1, slot), click)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        with torch.no_grad():
            who, slot, click = visits(512)
            logit = net(who).gather(1, slot)[:, 0]
            print(step, loss.item(), "true loss", cross_entropy(logit, click).item(), "right", ((logit > 0) == click.bool()).float().mean().item(),
                  "spread of logits", logit.std().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
