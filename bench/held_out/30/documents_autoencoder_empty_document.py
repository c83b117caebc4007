"""A denoising autoencoder of documents (counts of words, each divided by its own length). FAULT at step 73: one document of that batch has no word of the vocabulary: 0 / 0.
Without Rangewatch: loss 2.90 to 0.40 at step 72, NaN from step 73 to the end.
Cause: data, forward_arithmetic or eps. Step: 73. Right: zero / divi / eps / input. Wrong: GradScaler, attention mask, learning rate."""
EXPECT = {"cause": ["data", "forward_arithmetic", "eps"], "step": [72, 76], "place": None, "rank": None,
          "right": "(?i)zero|divi|eps|input|empty|clamp|batch|0 ?/ ?0", "wrong": ["GradScaler", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3008); torch.set_num_threads(1)
topics = torch.softmax(2 * torch.randn(7, 200), 1)


def documents(step, n=64):
    share = torch.distributions.Dirichlet(torch.full((7,), 0.3)).sample((n,))
    length = torch.randint(20, 120, (n, 1)).float()
    counts = torch.poisson(length * (share @ topics))
    if step == 73:
        counts[17] = torch.poisson(0.0 * counts[17])
    return counts


net = nn.ModuleDict({
    "encoder": nn.Sequential(nn.Linear(200, 96), nn.LeakyReLU(0.1), nn.Linear(96, 12)),
    "decoder": nn.Sequential(nn.Linear(12, 96), nn.LeakyReLU(0.1), nn.Linear(96, 200))})
optimizer = torch.optim.Adagrad(net.parameters(), lr=0.02)
handle = rangewatch.attach(net, optimizer)
for step in range(160):
    counts = documents(step)
    frequency = counts / counts.norm(dim=1, keepdim=True)
    seen = frequency * (torch.rand_like(frequency) < 0.8)
    loss = F.mse_loss(net["decoder"](net["encoder"](seen)), frequency) * 200
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step in (72, 73, 74, 159):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
