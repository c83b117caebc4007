"""Signal or background of simulated collisions: a set network over the hits of an event (ragged lists, segment maximum by scatter_reduce), AdamW, batches of 48 events.
FAULT at step 103: a trigger-less event has no hit at all; its maximum stays at the -inf with which the pool was filled and the classifier makes inf - inf = NaN of it.
Without Rangewatch: loss 0.70 to some 0.45 (noisy), NaN from 103.
Cause: forward_arithmetic (maximum over nothing) / data (an event without hits). Step: 103. Right: fill with 0, drop empty events, include a dummy hit. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [102, 105], "place": r"(?i)verdict|hit_net|^$|event", "rank": None,
          "right": r"(?i)max|empty|-?inf|pool|no hits|mask|input|data|row|forward", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import torch
import torch.nn as nn
import rangewatch

torch.set_num_threads(1)
rng = torch.Generator().manual_seed(2024)
torch.manual_seed(2024)


class HitSet(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.width = width
        self.hit_net = nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.Linear(width, width))
        self.verdict = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, hits, event_of_hit, events):
        h = self.hit_net(hits)
        pool = torch.full((events, self.width), float("-inf"))
        pool = pool.scatter_reduce(0, event_of_hit[:, None].expand_as(h), h, reduce="amax")
        return self.verdict(pool)[:, 0]


def collisions(n, empty=None):
    signal = torch.randint(0, 2, (n,), generator=rng)
    hits, owner = [], []
    for e in range(n):
        count = 0 if e == empty else int(torch.randint(3, 12, (1,), generator=rng))
        h = torch.randn(count, 4, generator=rng)
        if signal[e] and count:
            h[0] += torch.tensor([1.5, 1.0, -1.0, 1.2])
        hits.append(h)
        owner += [e] * count
    return torch.cat(hits), torch.tensor(owner), signal.float()


model = HitSet()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
handle = rangewatch.attach(model, opt)
criterion = nn.BCEWithLogitsLoss()
for it in range(180):
    hits, owner, signal = collisions(48, empty=17 if it == 103 else None)
    opt.zero_grad(set_to_none=True)
    loss = criterion(model(hits, owner, 48), signal)
    loss.backward()
    opt.step()
    if it % 20 == 0 or it in (102, 103, 104):
        print(f"it {it} loss {loss.item():.4f}")
handle.detach()
