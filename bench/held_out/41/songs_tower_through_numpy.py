"""Two-tower song recommender: a listener tower and a song tower, in-batch softmax over 64 pairs, Adam with two groups.
FAULT at step 0: the song vectors are normalised in numpy and come back by torch.from_numpy: no gradient reaches the song tower.
Without Rangewatch: loss 4.78, 3.53 at step 104, 2.44 at 259, for the listeners adapt themselves to random song vectors (with a gradient 2.18); .grad of the song tower is None from first to last.
Cause: no_gradient / backward_arithmetic (graph cut). Step: from 0. Right: stay in torch, do not detach. Wrong: GradScaler, clip, zero_grad."""
EXPECT = {"cause": ["no_gradient", "backward_arithmetic"], "step": [0, 100], "place": r"(?i)song", "rank": None,
          "right": r"(?i)detach|numpy|no_grad|graph|no gradient|reach|\.data|\.item", "wrong": ["GradScaler", r"(?i)clip (the )?grad", r"(?i)call (optimizer\.)?zero_grad"]}
import numpy as np
import torch
from torch import nn
import rangewatch

torch.manual_seed(55); np.random.seed(55)
torch.set_num_threads(1)
LISTENERS, SONGS, TASTE = 300, 400, 5
u_taste = torch.randn(LISTENERS, TASTE)
s_taste = torch.randn(SONGS, TASTE)
audio = torch.cat([s_taste @ torch.randn(TASTE, 12), 0.3 * torch.randn(SONGS, 12)], 1)
affinity = torch.softmax(2.0 * u_taste @ s_taste.T, 1)


class SongTower(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, d))

    def forward(self, features):
        v = self.net(features).detach().numpy()
        v = v / (np.linalg.norm(v, axis=1, keepdims=True) + 1e-6)
        return torch.from_numpy(v)


class TwoTower(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.listener_tower = nn.Sequential(nn.Embedding(LISTENERS, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, d))
        self.song_tower = SongTower(d)
        self.log_temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, listeners, songs):
        u = nn.functional.normalize(self.listener_tower(listeners), dim=1)
        return u @ self.song_tower(songs).T * self.log_temperature.exp()


model = TwoTower()
optimizer = torch.optim.Adam([
    {"params": list(model.listener_tower.parameters()) + [model.log_temperature], "lr": 2e-3},
    {"params": model.song_tower.parameters(), "lr": 1e-3}])
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    listeners = torch.randint(0, LISTENERS, (64,))
    heard = torch.multinomial(affinity[listeners], 1).squeeze(1)
    scores = model(listeners, audio[heard])
    loss = nn.functional.cross_entropy(scores, torch.arange(64))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 26 == 0 or step == 259:
        g = model.song_tower.net[0].weight.grad
        print(f"{step} loss {loss.item():.4f} gradient of the song tower: {None if g is None else g.norm().item()}", flush=True)
handle.detach()
