"""A bag-of-words net sorts short messages by topic; a batch sampler of its own puts those of like length together. FAULT from the second epoch (step 40):
set_epoch() is called and stored, but __iter__ seeds its generator with the seed alone: each epoch has the same batches in the same order.
Without Rangewatch: loss 1.80 at step 0, 0.95 at 40, 0.22 at 80, 0.012 at 200; the first words of each epoch's batches are the same each time.
Variant of: sampler_of_its_own_passes_over_the_epoch.
Cause: data. Step: 40 (the second epoch begins to repeat the first) or later. Right: set_epoch / shuffle / order / sampler / seed. Wrong: rate,
GradScaler, mask."""
EXPECT = {"cause": ["data"], "step": [39, 170], "place": None, "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "set_epoch|epoch|[Ss]huffl|same order|[Ss]ampler|seed"}
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
import rangewatch

torch.manual_seed(1303); torch.set_num_threads(1)
WORDS, TOPICS = 200, 6
topic_words = (1.6 * torch.randn(TOPICS, WORDS)).softmax(1)


class Messages(Dataset):
    def __init__(self, n=1280):
        self.topic = torch.randint(0, TOPICS, (n,))
        self.length = torch.randint(4, 20, (n,))
        self.words = [torch.multinomial(topic_words[t], int(k), replacement=True) + 1 for t, k in zip(self.topic, self.length)]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return self.words[i], self.topic[i]


class BucketSampler(Sampler):
    def __init__(self, lengths, size, seed):
        self.lengths, self.size, self.seed, self.epoch = lengths, size, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths) // self.size

    def __iter__(self):
        own = torch.Generator().manual_seed(self.seed)  # meant: self.seed + self.epoch
        noisy = self.lengths + 3 * torch.rand(len(self.lengths), generator=own)
        batches = noisy.argsort().split(self.size)
        for i in torch.randperm(len(batches), generator=own):
            yield batches[i].tolist()


def collate(rows):
    return nn.utils.rnn.pad_sequence([words for words, _ in rows], batch_first=True), torch.stack([topic for _, topic in rows])


class TopicNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.EmbeddingBag(WORDS + 1, 32, mode="mean", padding_idx=0)
        self.hidden, self.topic = nn.Linear(32, 48), nn.Linear(48, TOPICS)

    def forward(self, x):
        return self.topic(F.relu(self.hidden(self.word(x))))


messages = Messages()
sampler = BucketSampler(messages.length, 32, 7)
loader = DataLoader(messages, batch_sampler=sampler, collate_fn=collate)
model = TopicNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
step = 0
for epoch in range(6):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 in (0, 1):
            print(epoch, step, x[0, :4].tolist(), loss.item(), flush=True)
        handle.log(loss=loss.item())
        step += 1
handle.detach()
