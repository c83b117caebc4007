"""Sentiment of synthetic reviews with an EmbeddingBag and an MLP; Adam with StepLR(step_size=10, gamma=0.1), meant as "a tenth every 10 epochs".
FAULT at step 10: natural. scheduler.step() stands inside the batch loop: the rate is 2e-3 for 10 batches, 2e-4 for 10 more, 2e-5 ... and nothing after step 30 learns any more.
Without Rangewatch: loss 0.6997 in epoch 0, 0.6969 in each later epoch to four digits, accuracy 0.477; lr 2e-9 after the first epoch. Without the schedule 0.43 and 0.81 in epoch 4.
Cause: learning_rate. Step: 10 to 150. Right: the schedule / scheduler.step once per epoch. Wrong: lower the learning rate, GradScaler, mask, zero_grad."""
EXPECT = {"cause": ["learning_rate"], "step": [10, 150], "place": None, "rank": None,
          "right": r"(?i)schedul|per epoch|decay|learning rate.{0,40}(small|low|fell|zero|1e-|tiny)|raise the learning rate", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)call .{0,20}zero_grad", "(?i)attention mask"]}
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import rangewatch

torch.manual_seed(10)
torch.set_num_threads(1)
VOCAB, LEN = 400, 20
tone = torch.randn(VOCAB) * (torch.rand(VOCAB) < 0.3)
reviews = torch.randint(0, VOCAB, (2048, LEN))
positive = (tone[reviews].sum(1) > 0).long()
loader = DataLoader(TensorDataset(reviews, positive), batch_size=32, shuffle=True)


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(VOCAB, 32, mode="mean")
        self.fc = nn.Linear(32, 32)
        self.verdict = nn.Linear(32, 2)

    def forward(self, words):
        return self.verdict(torch.relu(self.fc(self.bag(words))))


model = BagOfWords()
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.1)
handle = rangewatch.attach(model, optimizer)
for epoch in range(5):
    total, hits = 0.0, 0
    for words, label in loader:
        optimizer.zero_grad()
        logits = model(words)
        loss = loss_fn(logits, label)
        loss.backward()
        optimizer.step()
        scheduler.step()
        total += loss.item()
        hits += (logits.argmax(1) == label).sum().item()
        handle.log(loss=loss.item())
    print(f"epoch {epoch} loss {total / len(loader):.4f} acc {hits / 2048:.3f} lr {scheduler.get_last_lr()[0]:.2g}", flush=True)
handle.detach()
