"""Country of origin of surnames (hashed letter trigrams, embedding bag, MLP), the whole model .half(), Adam with defaults.
FAULT at step 0: model.half() makes the weights float16, and Adam's eps of 1e-8 and many squared gradients are 0 in float16: m / (sqrt(v) + eps) is 0/0 or m/0.
Without Rangewatch: loss 1.81 at step 0, NaN from 1 on; 12000 weights are NaN after step 0, 15781 after step 1.
Cause: optimizer (eps lost in float16) / loss_scale (float16 underflow). Step: 0 or 1. Right: autocast with float32 weights, larger eps. Wrong: attention mask, zero_grad, shuffle."""
EXPECT = {"cause": ["optimizer", "loss_scale"], "step": [0, 3], "place": None, "rank": None,
          "right": r"(?i)eps|half|float16|fp16|float32|autocast|underflow|precision", "wrong": [r"(?i)attention mask", r"(?i)call (optimizer\.)?zero_grad", r"(?i)shuffle"]}
import random
import torch
from torch import nn
import rangewatch

random.seed(88); torch.manual_seed(88)
torch.set_num_threads(1)
ENDINGS = {"ov": 0, "ev": 0, "ski": 1, "icz": 1, "ini": 2, "elli": 2, "sen": 3, "son": 3, "ez": 4, "ado": 4}
BUCKETS = 512


def surname():
    end = random.choice(list(ENDINGS))
    stem = "".join(random.choice("bdfglmnprst") + random.choice("aeiou") for _ in range(random.randint(1, 3)))
    return "^" + stem + end + "$", ENDINGS[end]


def bucket(trigram):
    h = 7
    for c in trigram:
        h = (h * 131 + ord(c)) % 1000003
    return h % BUCKETS


def batch(n=32):
    flat, offsets, y = [], [], []
    for _ in range(n):
        name, country = surname()
        offsets.append(len(flat))
        flat += [bucket(name[i:i + 3]) for i in range(len(name) - 2)]
        y.append(country)
    return torch.tensor(flat), torch.tensor(offsets), torch.tensor(y)


class Origin(nn.Module):
    def __init__(self):
        super().__init__()
        self.trigrams = nn.Embedding(BUCKETS, 32)
        self.fc1, self.fc2 = nn.Linear(32, 48), nn.Linear(48, 5)

    def forward(self, flat, offsets):
        owner = torch.bucketize(torch.arange(len(flat)), offsets, right=True) - 1
        e = self.trigrams(flat)
        bag = torch.zeros(len(offsets), 32, dtype=e.dtype).index_add(0, owner, e)
        return self.fc2(torch.relu(self.fc1(bag)))


model = Origin().half()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, opt)
for step in range(150):
    flat, offsets, y = batch()
    loss = nn.functional.cross_entropy(model(flat, offsets).float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    handle.log(loss=loss.item())
    if step < 5 or step % 25 == 0:
        nans = sum(int(torch.isnan(p).sum()) for p in model.parameters())
        print(f"step {step} loss {loss.item():.4f}, NaN weights {nans}", flush=True)
handle.detach()
