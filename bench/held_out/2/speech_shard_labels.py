"""Keyword spotting: a GRU over filter banks, SGD with momentum, shards read one after another. FAULT at step 160: the third shard was written
with its features and its labels shuffled each by a permutation of its own: the inputs are as they were, the labels are those of other clips. The
loss jumps from near zero to far above that of chance and then sinks to chance. Nothing is NaN, no input looks unusual. Report:
udacity/sdc-issue-reports#1326 (features and labels shuffled apart), datarekha.com/interview/deep-learning/debugging-model-not-learning (step 2).
Cause: data (labels), step 160. Right: look at that batch's / shard's labels. Wrong: lower the learning rate, mask, precision."""
EXPECT = {"cause": ["data"], "step": [159, 162], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler"], "right": "[Ll]abel|[Tt]arget|batch|shard"}
import numpy as np
import torch
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
rng = np.random.default_rng(0)
WORDS, FRAMES, BANDS, SHARD, BATCH = 10, 20, 16, 2560, 32
templates = rng.normal(size=(WORDS, FRAMES, BANDS)).astype("float32")


def read_shard(number):
    labels = rng.integers(0, WORDS, SHARD)
    features = templates[labels] + 1.5 * rng.normal(size=(SHARD, FRAMES, BANDS)).astype("float32")
    if number == 2:
        rng.shuffle(features)
        rng.shuffle(labels)
    return torch.from_numpy(features.astype("float32")), torch.from_numpy(labels)


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(BANDS)
        self.gru = nn.GRU(BANDS, 48, num_layers=2, batch_first=True)
        self.classify = nn.Sequential(nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, WORDS))

    def forward(self, frames):
        states, _ = self.gru(self.norm(frames))
        return self.classify(states.mean(1))


spotter = Spotter()
optimizer = torch.optim.SGD(spotter.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
handle = rangewatch.attach(spotter, optimizer)
step = 0
for number in range(3):
    features, labels = read_shard(number)
    for i in range(0, SHARD, BATCH):
        optimizer.zero_grad()
        loss = criterion(spotter(features[i : i + BATCH]), labels[i : i + BATCH])
        loss.backward()
        optimizer.step()
        handle.log(loss=loss.item())
        if step % 10 == 0 or 158 <= step < 164:
            print(step, round(loss.item(), 4))
        step += 1
