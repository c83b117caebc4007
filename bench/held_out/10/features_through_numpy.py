"""A net that ranks films: an encoder of plots, whose features are standardised over the batch with numpy, and a head. FAULT from step 0 on:
features.detach().numpy() and torch.from_numpy cut the graph, the encoder never has a gradient, and the head learns from random features alone.
Without Rangewatch: loss 0.73 to 0.65 (log of 2 is 0.69), 0 of 5 parameters of the encoder have a gradient; with the graph kept it falls to 0.26 to 0.40.
Report: rll-research/cic#5 (no gradient through the encoder), lebrice/Sequoia#71 (the encoder does not get gradients), facebookresearch/fairseq#408.
Cause: no_gradient. Step: 0. Right: detach / numpy / graph / no gradient / encoder. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["no_gradient"], "step": [0, 80], "place": r".*encoder.*|", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "detach|numpy|graph|gradient|no_grad"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1021); torch.set_num_threads(1)
WORDS = 300
worth = torch.randn(WORDS)


class FilmRanker(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.EmbeddingBag(WORDS, 32, mode="mean"), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
        self.head = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, plot):
        features = self.encoder(plot).detach().numpy()  # sklearn's scaler takes no tensors
        features = (features - features.mean(0)) / (features.std(0) + 1e-6)
        return self.head(torch.from_numpy(features))[:, 0]


model = FilmRanker()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    plot = torch.randint(0, WORDS, (64, 12))
    liking = worth[plot].sum(1) / 12 ** 0.5 + 0.2 * torch.randn(64)
    score = model(plot)
    loss = F.softplus(-(score[:32] - score[32:]) * (liking[:32] - liking[32:]).sign()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or step == 299:
        print(step, loss.item(), "parameters of the encoder with a gradient", sum(p.grad is not None for p in model.encoder.parameters()), flush=True)
    handle.log(loss=loss.item())
handle.detach()
