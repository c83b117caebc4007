"""Face embeddings by triplets (MLP on descriptors, own Euclidean distance, RMSprop) (thread: 'triplet loss NaN after some iterations, loss itself fine').
FAULT at step 117: a person with a single photo is drawn, anchor and positive are the same picture; the distance is sqrt(0) and its derivative inf * 0 = NaN. The loss of that step is finite.
Without Rangewatch: loss 0.55 to 0.02, 0.0388 at step 117, nan from 118 on.
Cause: backward_arithmetic (derivative of the root at 0) / forward_arithmetic / data (duplicate). Step: 117 (loss NaN from 118). Right: an eps under the root, squared distances, no duplicates. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["backward_arithmetic", "forward_arithmetic", "data"], "step": [116, 119], "place": None, "rank": None,
          "right": r"(?i)sqrt|root|norm|eps|zero|duplicat|distance|0 ?\* ?inf|derivative|backward",
          "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import random
import torch
from torch import nn
import rangewatch

random.seed(5); torch.manual_seed(5); torch.set_num_threads(1)
PEOPLE, PHOTOS, FEATS = 40, 6, 64
identity = torch.randn(PEOPLE, FEATS)
album = {p: [identity[p] + 0.8 * torch.randn(FEATS) for _ in range(PHOTOS)] for p in range(PEOPLE)}
album[PEOPLE] = [torch.randn(FEATS)]


def triplets(n, people):
    a, p, q = [], [], []
    for who in people[:n]:
        pics = album[who]
        one, two = random.sample(pics, 2) if len(pics) > 1 else (pics[0], pics[0])
        other = random.choice([o for o in range(PEOPLE) if o != who])
        a.append(one); p.append(two); q.append(random.choice(album[other]))
    return torch.stack(a), torch.stack(p), torch.stack(q)


def euclid(u, v):
    return (u - v).pow(2).sum(dim=1).sqrt()


class FaceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(FEATS, 128), nn.ELU(), nn.Linear(128, 128), nn.ELU())
        self.embed = nn.Linear(128, 24)

    def forward(self, x):
        return self.embed(self.trunk(x))


facenet = FaceNet()
opt = torch.optim.RMSprop(facenet.parameters(), lr=3e-4)
watch = rangewatch.attach(facenet, opt)
for it in range(180):
    who = [random.randrange(PEOPLE) for _ in range(32)]
    if it == 117:
        who[9] = PEOPLE
    a, p, n = (facenet(z) for z in triplets(32, who))
    loss = torch.relu(euclid(a, p) - euclid(a, n) + 1.0).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    watch.log(loss=loss.item())
    if it % 20 == 0 or 115 < it < 120:
        print(it, "triplet loss", round(loss.item(), 4), flush=True)
watch.detach()
